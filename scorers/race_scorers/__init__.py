"""The scorers that come with the framework. Each is a plugin like anyone's: it imports only `race`."""
