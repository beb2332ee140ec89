"""A stand-in for SGLang: its module names, signatures and plan classes, and nothing else of it."""
