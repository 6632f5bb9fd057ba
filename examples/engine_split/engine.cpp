// The one file that compiles the engine's policies. A build of many policies splits it by policy, to compile in parallel.
#define EXAMPLE_DEFINES_VERBS
#include "engine.hpp"

EXAMPLE_ALL_VERBS(template)
