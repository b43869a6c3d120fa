"""What depends on the process and the platform: signals, threads, output capture, and writing files safely."""
