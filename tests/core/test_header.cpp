// Compiles the precompiled header of the core's tests.
