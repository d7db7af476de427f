// How gRPC turns the name of a host into addresses: as everything else of ours does.
//
// gRPC's own resolver reads /etc/hosts too, and then asks a name server for the kind of address
// that does not stand there: where none answers, each connection begins seconds late.
#pragma once

#include <string>

namespace muster::rpc {

// What gRPC is to be told for host:port: else it would take the host for a scheme where it has one
// of that name, as in unix:5 or dns:4711, and connect to something else.
std::string TargetOf(const std::string& address);

// By the system's resolver from now on, unless GRPC_DNS_RESOLVER says otherwise. At the beginning
// of main(), before there are threads.
void UseSystemResolver();

// A name may stand for another address after a connection is lost: how soon gRPC looks again.
inline constexpr int kMsBetweenLookups = 1'000;

}  // namespace muster::rpc
