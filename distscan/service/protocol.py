"""What a service and its clients agree on."""

#: The version of the protocol; a client of another one is refused.
VERSION = 1
#: The states of jobs that have ended.
ENDED = ("done", "failed", "cancelled")
