#!/bin/sh
# If this script's name is in the container's command, the init does the script's work by itself. A direct call, or a call as the
# entrypoint, has the same effect.
exec /init "$@"
