// Places in sorted columns.

// The first index in [low, high) whose value is above the limit; high where there is none.
export function firstAbove(values, limit, low, high) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > limit) high = middle;
    else low = middle + 1;
  }
  return low;
}

// The index of an id, or -1.
export function indexOfId(ids, id) {
  const index = firstAbove(ids, id - 1, 0, ids.length);
  return index < ids.length && ids[index] === id ? index : -1;
}
