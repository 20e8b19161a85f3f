"""The place of the GPU kernels. Until there are any, a GPU runs the reference operations."""
