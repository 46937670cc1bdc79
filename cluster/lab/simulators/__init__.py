"""Stand-ins for a Spark's own tools, laid into /usr/local/bin of the lab's hosts. Standard library only."""
