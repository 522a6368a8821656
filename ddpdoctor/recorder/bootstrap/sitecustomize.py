"""First on PYTHONPATH under `ddpdoctor run`: record every DDP model of this interpreter.

How a process joins its process group is noted before that, since a launch that fails has no model.
Only an import hook is installed; nothing of torch or ddpdoctor is loaded before the script does.
"""

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any

_DDP = "torch.nn.parallel.distributed"
_OPTIMIZER = "torch.optim.optimizer"
_DISTRIBUTED = "torch.distributed"
_HERE = os.path.dirname(os.path.abspath(__file__))


class _AfterLoading(importlib.abc.MetaPathFinder):
    """Lets one module load as usual, then does something with it."""

    def __init__(self, module: str, action: Any) -> None:
        self._module = module
        self._action = action

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                self._action(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _watch_ddp(module: Any) -> None:
    """Record each instance from its construction on; the recorder is imported only then."""
    ddp_class = module.DistributedDataParallel
    construct = ddp_class.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        _Steps.end()
        recorder = _begin(args[0] if args else kwargs.get("module"))
        construct(self, *args, **kwargs)
        if recorder is not None:
            recorder.guard.run(recorder.add, self)

    __init__.__wrapped__ = construct  # type: ignore[attr-defined]
    ddp_class.__init__ = __init__


def _watch_joining(module: Any) -> None:
    """Note each call of init_process_group, and what becomes of it."""
    join = getattr(module, "init_process_group", None)
    if join is None:  # a torch that was built without
        return

    @functools.wraps(join)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        watch = _joinwatch()
        call = watch and watch.begin(join, args, kwargs)
        if call is None:
            return join(*args, **kwargs)
        try:
            joined = join(*args, **kwargs)
        except BaseException as error:
            watch.ended(call, error)
            raise
        watch.ended(call, None)
        return joined

    for home in (module, sys.modules.get(join.__module__)):  # where it is defined, too
        if getattr(home, "init_process_group", None) is join:
            home.init_process_group = init_process_group  # type: ignore[union-attr]


def _joinwatch() -> Any:
    _find_ddpdoctor()
    try:
        from ddpdoctor.recorder import joinwatch
    except ImportError:  # it is said where a model is made
        return None
    return joinwatch


class _Steps:
    """Watches the first optimizer steps of a process that makes no DDP model."""

    handle: Any = None
    watch: Any = None

    @classmethod
    def begin(cls, module: Any) -> None:
        cls.handle = module.register_optimizer_step_post_hook(cls.stepped)

    @classmethod
    def stepped(cls, *_: Any) -> None:
        distributed = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available():
            return
        if cls.watch is None and distributed.is_initialized():
            cls.watch = cls.made()
        if cls.watch is not None:
            cls.watch.stepped()

    @classmethod
    def made(cls) -> Any:
        _find_ddpdoctor()
        try:
            from ddpdoctor.recorder.unwrapped import UnwrappedWatch
        except ImportError:  # a name of torch is gone: then it cannot be told
            cls.end()
            return None
        return UnwrappedWatch(cls.end)

    @classmethod
    def end(cls) -> None:
        if cls.handle is not None:
            cls.handle.remove()
            cls.handle = None


def _begin(module: Any) -> Any:
    """The recorder; None, with a sentence, where ddpdoctor is not installed for this Python."""
    _find_ddpdoctor()
    try:
        from ddpdoctor.recorder import begin
    except ImportError as error:
        sys.stderr.write(f"ddpdoctor: cannot record here; training goes on ({error})\n")
        return None
    return begin(module)


def _find_ddpdoctor() -> None:
    if importlib.util.find_spec("ddpdoctor") is None:
        sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(_HERE))))


def _chain() -> None:
    """Run the sitecustomize that this one stands in front of, if there is one."""
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


sys.meta_path.insert(0, _AfterLoading(_DDP, _watch_ddp))
if os.environ.get("DDPDOCTOR_DISABLE", "0") in ("", "0"):
    sys.meta_path.insert(0, _AfterLoading(_OPTIMIZER, _Steps.begin))
    sys.meta_path.insert(0, _AfterLoading(_DISTRIBUTED, _watch_joining))
_chain()
