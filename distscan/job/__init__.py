"""The file job: file -> shard -> scan -> file."""
