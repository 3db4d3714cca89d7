"""The service: ranks that stay up, and clients that need neither MPI nor CUDA."""
