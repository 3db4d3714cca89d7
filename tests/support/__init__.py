"""What tests share, one idea a file. No test imports another test file, or conftest."""
