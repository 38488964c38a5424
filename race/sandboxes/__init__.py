"""The sandbox providers that come with the package, one module or folder each."""
