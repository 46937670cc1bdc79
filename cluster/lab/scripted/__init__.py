"""A scripted OpenAI server: a pretended model that answers rightly, and behaviours that get something wrong.

`asked` reads a request, `brain` answers it, `forms` puts the answer into a server's form, `right` has the forms of
servers that are right, `wrong` the known defects, `reply` plays one of them: all pure. `server` has the sockets.
"""
