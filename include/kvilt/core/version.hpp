#pragma once

// The one place that holds the version: the build reads it from here.
#define KVILT_VERSION_MAJOR 0
#define KVILT_VERSION_MINOR 1
#define KVILT_VERSION_PATCH 0
