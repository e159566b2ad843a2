"""What a model is told: templates, tool definitions, how to call. Pure; agents and gateways share it."""
