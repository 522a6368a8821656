// Numbers as words.

export function duration(ms) {
  if (ms === null || ms === undefined) return "not measured";
  if (ms < 0) return `−${duration(-ms)}`;
  const size = ms;
  if (size >= 1000) return `${(ms / 1000).toFixed(2)} s`;
  if (size >= 100) return `${ms.toFixed(0)} ms`;
  if (size >= 1) return `${ms.toFixed(2)} ms`;
  return `${(ms * 1000).toFixed(0)} µs`;
}

export function more(ms) {
  return `${ms >= 0 ? "+" : "−"}${duration(Math.abs(ms))}`;
}

export function bytes(count) {
  if (count >= 2 ** 20) return `${(count / 2 ** 20).toFixed(1)} MiB`;
  if (count >= 2 ** 10) return `${(count / 2 ** 10).toFixed(1)} KiB`;
  return `${count} B`;
}

// A round step of the ruler that leaves at least this many milliseconds between marks.
export function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  for (const factor of [1, 2, 5, 10]) if (power * factor >= least) return power * factor;
  return power * 10;
}

export function moment(ms, step) {
  if (step >= 1000) return `${(ms / 1000).toFixed(0)} s`;
  if (step >= 100) return `${(ms / 1000).toFixed(1)} s`;
  const digits = Math.max(0, -Math.floor(Math.log10(step)));
  return `${ms.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })} ms`;
}

export function callName(op, bucket) {
  const name = op.replaceAll("_", "-");
  return bucket === null || bucket < 0 ? name : `${name} · bucket ${bucket}`;
}
