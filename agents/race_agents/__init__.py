"""The agents that come with the framework, each found by its entry point in the group ``race.agents``."""
