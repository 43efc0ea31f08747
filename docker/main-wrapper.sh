#!/bin/sh
# The init does the work of this script by itself when it finds its name in the container's command. Called directly, or
# as the entrypoint, it means the same.
exec /init "$@"
