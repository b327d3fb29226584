"""Ways to break the server, and the tests that notice."""

from tests.mutations.mutation import Mutation

ENGINE = "tests/serve/test_engine.py"
LIVE = "tests/serve/test_live.py"
NATIVE = "tests/serve/test_native.py"
SECURITY = "tests/serve/test_security.py"
STEPS = "tests/decoding/test_steps.py"

SERVING = (
    Mutation(
        "serve: requests with different settings share a batch",
        "saccade/serve/engine.py",
        "        return one.key == other.key\n    if isinstance(one, Stream)",
        "        return True\n    if isinstance(one, Stream)",
        (ENGINE,),
    ),
    Mutation(
        "serve: the queue has no end",
        "saccade/serve/engine.py",
        "if len(self.waiting) >= self.max_waiting:",
        "if False:",
        (ENGINE,),
    ),
    Mutation(
        "serve: a request is read before it is refused",
        "saccade/serve/security.py",
        "            self.service.engine.require_room()",
        "            pass",
        (SECURITY,),
    ),
    Mutation(
        "serve: what nobody waits for is computed",
        "saccade/serve/engine.py",
        "return bool(_flags[self.slot]) or monotonic() > self.deadline",
        "return False",
        (ENGINE,),
    ),
    Mutation(
        "serve: a signal to all processes ends the model before its answers",
        "saccade/engines/processes.py",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "signal.signal(signal.SIGTERM, signal.SIG_DFL)",
        (LIVE,),
    ),
    Mutation(
        "serve: a client may name a file of permitted outputs",
        "saccade/serve/served.py",
        'frozenset(c.Compute.model_fields) | {"only", "model"}',
        "frozenset(c.Compute.model_fields)",
        (NATIVE,),
    ),
    Mutation(
        "serve: media may be paths",
        "saccade/serve/served.py",
        'if text[:1] != "[" and not text.startswith(_temporary_folder()):',
        "if False:",
        (NATIVE,),
    ),
    Mutation(
        "serve: a page of another site may ask",
        "saccade/serve/security.py",
        "if origin is not None and origin.lower() not in",
        "if origin is None and origin not in",
        (SECURITY,),
    ),
    Mutation(
        "serve: the key is not looked at",
        "saccade/serve/security.py",
        "if expected and not hmac.compare_digest",
        "if not expected and not hmac.compare_digest",
        (SECURITY,),
    ),
    Mutation(
        "steps: a source that was given up goes on",
        "saccade/decoding/steps.py",
        "log_probs = log_probs.masked_fill(rows[:, None], -inf)",
        "log_probs = log_probs.clone()",
        (STEPS,),
    ),
    Mutation(
        "sample: every row is drawn by the first seed",
        "saccade/decoding/sample.py",
        "np.array([seeds[row] for row in rows], np.uint64)",
        "np.array([seeds[0] for row in rows], np.uint64)",
        ("tests/decoding/test_sample.py",),
    ),
)
