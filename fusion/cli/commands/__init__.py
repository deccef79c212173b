"""The commands of ``kvfuse``, one module each (see `fusion.cli`)."""
