"""The tool that has kernels written, judged, kept, reviewed and compared."""
