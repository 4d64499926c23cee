"""What `benchmarks.vs_trl` is made of: the tasks that both trainers play, the model that both start from, the peer."""
