#!/bin/sh
# Stands before the real runc on dockerd's PATH; only what makes a process needs fitting (see bundle.py).
for word in "$@"; do
    case "$word" in
        create | run | exec) exec /usr/bin/python3 -I -S /usr/local/lib/cluster-lab/bundle.py "$@" ;;
    esac
done
exec /usr/sbin/runc "$@"
