/** Returns the name that `wrong` probably is a misspelling of; undefined if none is similar. */
export function findNearest(wrong: string, names: readonly string[]): string | undefined {
  const limit = Math.max(1, Math.floor(wrong.length / 3))
  let best: string | undefined
  let bestDistance = limit + 1
  for (const name of names) {
    const distance = computeEditDistance(wrong.toLowerCase(), name.toLowerCase())
    if (distance >= bestDistance) continue
    best = name
    bestDistance = distance
  }
  return best
}

/** Returns ` (did you mean x?)`, or an empty string. */
export function formatSuggestion(wrong: string, names: readonly string[]): string {
  const name = findNearest(wrong, names)
  return name === undefined ? '' : ` (did you mean ${name}?)`
}

/** Returns the optimal string alignment distance: insertion, deletion, substitution and transposition cost one each. */
function computeEditDistance(a: string, b: string): number {
  let beforeLast: number[] = []
  let last = Array.from({ length: b.length + 1 }, (_, column) => column)
  for (let row = 1; row <= a.length; row++) {
    const current = [row]
    for (let column = 1; column <= b.length; column++) {
      const substitution = last[column - 1]! + (a[row - 1] === b[column - 1] ? 0 : 1)
      let cost = Math.min(substitution, last[column]! + 1, current[column - 1]! + 1)
      const swapped = row > 1 && column > 1 && a[row - 1] === b[column - 2] && a[row - 2] === b[column - 1]
      if (swapped) cost = Math.min(cost, beforeLast[column - 2]! + 1)
      current.push(cost)
    }
    beforeLast = last
    last = current
  }
  return last[b.length]!
}
