// Whether members of one host have a processor each.
#pragma once

namespace muster::collectives {

// As many `members` compute on this host. True: they outnumber the processors that this process may
// use, and a member that spins keeps another from coming.
bool Crowded(int members);

}  // namespace muster::collectives
