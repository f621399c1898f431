// Which kernels this CPU can run.
#pragma once
#include <string>
#include <vector>

#include "conv.hpp"

namespace stompp {

// Best first; "portable" is always the last.
std::vector<std::string> available_isas();

// The kernels of that name, or the best ones for "auto". Throws std::invalid_argument for others.
const Kernels &kernels_for(const std::string &isa);

} // namespace stompp
