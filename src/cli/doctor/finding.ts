/** One thing that was looked at. */
export interface Finding {
  /** What was looked at, in a word or two. */
  about: string
  state: 'ok' | 'warning' | 'failure'
  /** What was seen. */
  seen: string
  /** What to do; of anything but `ok`. */
  remedy?: string
}

export function ok(about: string, seen: string): Finding {
  return { about, state: 'ok', seen }
}

export function warning(about: string, seen: string, remedy: string): Finding {
  return { about, state: 'warning', seen, remedy }
}

export function failure(about: string, seen: string, remedy: string): Finding {
  return { about, state: 'failure', seen, remedy }
}
