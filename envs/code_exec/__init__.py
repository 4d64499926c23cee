"""Small programs from a description, run for real and graded by hidden tests."""
