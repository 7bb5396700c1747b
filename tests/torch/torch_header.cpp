// Has the precompiled header that tests and examples share; nothing else.
