#include "services/common/grpc_server.h"

#include <cstring>
#include <fstream>
#include <string>

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "muster/v1/cluster.grpc.pb.h"
#include "services/common/grpc_channel.h"
#include "services/common/notify.h"
#include "tests/support/catch.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/services/admin/https_client.h"

namespace muster::services {
namespace {

const Endpoint kAnyPort{.host = "127.0.0.1", .port = 0};

TEST_CASE("a server writes the address it chose", "[services][unit]") {
  const testing::TempFolder dir;
  const std::string file = dir / "port";

  const auto server = GrpcServer::Start({.listen = kAnyPort, .port_file = file});

  REQUIRE(server.ok());
  CHECK((*server)->endpoint().port > 0);
  std::string line;
  std::ifstream stream(file);
  std::getline(stream, line);
  CHECK(line == (*server)->endpoint().ToString());
}

TEST_CASE("a port in use is said, not shared", "[services][unit]") {
  const auto first = GrpcServer::Start({.listen = kAnyPort});
  REQUIRE(first.ok());

  const auto second = GrpcServer::Start({.listen = (*first)->endpoint()});

  REQUIRE(second.status().code() == StatusCode::kFailedPrecondition);
  CHECK(Message(second.status()).find((*first)->endpoint().ToString()) != std::string::npos);
  CHECK(Message(second.status()).find("in use") != std::string::npos);
}

TEST_CASE("a client that insists on TLS 1.2 is refused", "[services][tls][unit]") {
  testing::Certificates folder;
  const tls::Files files = folder.Issue("node", {.role = tls::Role::kNode, .names = {"chief:0"}});
  const auto server =
      GrpcServer::Start({.listen = kAnyPort, .tls = *tls::Context::FromFiles(files)});
  REQUIRE(server.ok());

  const int port = (*server)->endpoint().port;

  CHECK(testing::HttpsClient(port, files).connected());
  CHECK_FALSE(testing::HttpsClient(port, files, TLS1_2_VERSION).connected());
}

TEST_CASE("status codes are the same on both sides of gRPC", "[services][unit]") {
  const Status status = FromGrpc(ToGrpc(DataLoss("page someone")));
  CHECK(status.code() == StatusCode::kDataLoss);
  CHECK(Message(status) == "page someone");
}

TEST_CASE("a message that gRPC would not carry is cut between two characters", "[services][unit]") {
  const Status plain = FromGrpc(ToGrpc(DataLoss("{}", std::string(7'000, 'x'))));
  CHECK(Message(plain) == std::string(6'000, 'x') + "... (1000 bytes more)");
  std::string words;
  for (int i = 0; i < 1'000; ++i) words += "Öl";
  const Status said = FromGrpc(ToGrpc(DataLoss("{}", words)));
  CHECK(Message(said) == words.substr(0, 3 * 857) + "... (429 bytes more)");
}

}  // namespace
}  // namespace muster::services
