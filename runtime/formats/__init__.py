"""Task formats of other systems: read into `runtime.task.Task`, and written from it."""
