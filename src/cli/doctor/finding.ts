/** The result of one check. */
export interface Finding {
  /** The subject of the check, in one or two words. */
  about: string
  state: 'ok' | 'warning' | 'failure'
  /** The observation. */
  seen: string
  /** The remedy; present unless the state is `ok`. */
  remedy?: string
}

export function createOkFinding(about: string, seen: string): Finding {
  return { about, state: 'ok', seen }
}

export function createWarning(about: string, seen: string, remedy: string): Finding {
  return { about, state: 'warning', seen, remedy }
}

export function createFailure(about: string, seen: string, remedy: string): Finding {
  return { about, state: 'failure', seen, remedy }
}
