#include "worker/engine/script_error.h"

#include <new>
#include <stdexcept>

#include "tests/support/catch.h"
#include "worker/engine/torch.h"

namespace muster::engine {
namespace {

TEST_CASE("a compiler's error keeps its suggestions and points at the place", "[engine][unit]") {
  const ScriptError error = ParseScriptError(
      "\nUnknown builtin op: aten::rellu.\nHere are some suggestions: \n\taten::relu\n\n"
      "The original call is:\n  File \"<string>\", line 2\ndef forward(self, x):\n"
      "    return torch.rellu(x)\n           ~~~~~~~~~~~ <--- HERE\n",
      "");

  CHECK(error.message ==
        "Unknown builtin op: aten::rellu.\nHere are some suggestions: \n\taten::relu");
  CHECK(error.line == 2);
  CHECK(error.column == 12);
  CHECK(error.excerpt == "    return torch.rellu(x)\n           ~~~~~~~~~~~");
}

TEST_CASE("an interpreter's error is placed in the innermost call", "[engine][unit]") {
  const ScriptError error = ParseScriptError(
      "The following operation failed in the TorchScript interpreter.\n"
      "Traceback of TorchScript (most recent call last):\n"
      "  File \"<string>\", line 6, in forward\ndef forward(self, x):\n"
      "    return self.helper(y)\n           ~~~~~~~~~~~ <--- HERE\n"
      "  File \"<string>\", line 2, in helper\ndef helper(self, y):\n"
      "    return torch.matmul(y, y)\n           ~~~~~~~~~~~~ <--- HERE\n\ndef forward(self, x):\n"
      "RuntimeError: shapes cannot be multiplied\n",
      "");

  CHECK(Describe(error, "forward") ==
        "forward, in helper, line 2, column 12: shapes cannot be multiplied\n"
        "    return torch.matmul(y, y)\n           ~~~~~~~~~~~~");
}

TEST_CASE("what an archive's own code raises is told with its class", "[engine][unit]") {
  const auto raised = [](const std::string& end) {
    return Describe(
        ParseScriptError("The following operation failed in the TorchScript interpreter.\n"
                         "Traceback of TorchScript, serialized code (most recent call last):\n"
                         "  File \"code/__torch__/net.py\", line 7, in forward\n"
                         "    if gt:\n      ops.prim.RaiseException(_6, \"builtins.ValueError\")\n"
                         "      ~~~~~~~~~~~~~~~~~~~~~~~ <--- HERE\n    else:\n      pass\n" +
                             end,
                         ""),
        "forward");
  };

  CHECK(raised("builtins.ValueError: too few: \na.b: 1\n")
            .starts_with("forward, code/__torch__/net.py, line 7, column 7: ValueError: too few: \n"
                         "a.b: 1\n"));
  CHECK(raised("__torch__.net.Odd: no\n")
            .starts_with("forward, code/__torch__/net.py, line 7, column 7: net.Odd: no\n"));
}

TEST_CASE("memory that ran out is told apart from errors of the program", "[engine][unit]") {
  const auto code_of = [](const auto& act) {
    try {
      act();
    } catch (...) {
      return CurrentException("forward", "").code();
    }
    return StatusCode::kOk;
  };

  const StatusCode alone = code_of([] {
    TORCH_CHECK(false, "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9");
  });
  const StatusCode interpreted = code_of(
      [] { throw std::runtime_error("a traceback\nRuntimeError: can't allocate memory: 9\n"); });
  const StatusCode plain = code_of([] { throw std::bad_alloc(); });
  const StatusCode odd = code_of([] { TORCH_CHECK(false, "odd"); });

  CHECK(alone == StatusCode::kResourceExhausted);
  CHECK(interpreted == StatusCode::kResourceExhausted);
  CHECK(plain == StatusCode::kResourceExhausted);
  CHECK(odd == StatusCode::kInvalidArgument);
}

TEST_CASE("a line that ends too early is the one pointed at", "[engine][unit]") {
  const ScriptError error = ParseScriptError(
      "expected ident but found 'newline' here:\n  File \"<string>\", line 3\n"
      "def forward(self, x):\n    y = x +\n    return y\n",
      "def forward(self, x):\n    y = x +\n    return y\n");

  CHECK(Describe(error, "forward") ==
        "forward, line 2, column 12: expected ident but found 'newline'\n    y = x +\n"
        "           ~");
}

TEST_CASE("an assertion of the parser is placed where the statement should have ended",
          "[engine][unit]") {
  const std::string source = "def forward(self, x):\n    y = x\n\n    retrn y + x\n    return y\n";
  // As the parser does: nothing before the end of "retrn y" disturbs it.
  const auto refusal = [](const std::string& text) -> std::string {
    return text.find("retrn y") != std::string::npos ? "x INTERNAL ASSERT FAILED at y" : "";
  };
  const Status asserted =
      InvalidArgument("forward: type.present() INTERNAL ASSERT FAILED at p.cpp");

  CHECK(Message(PlacedSyntaxError(asserted, "forward", source, refusal)) ==
        "forward, line 4, column 11: invalid syntax: expected an operator, '=' or the end of the "
        "line; did you mean \"return\"?\n    retrn y + x\n          ~");
  CHECK(PlacedSyntaxError(asserted, "forward", "def f(x):\n    return x\n", refusal) == asserted);
  CHECK(PlacedSyntaxError(InvalidArgument("odd"), "forward", source, refusal) ==
        InvalidArgument("odd"));
}

TEST_CASE("text of any other kind is passed on as it is", "[engine][unit]") {
  CHECK(Describe(ParseScriptError("odd", ""), "forward") == "forward: odd");
}

}  // namespace
}  // namespace muster::engine
