/** The token data of rows in the proxy's JSON: docs/details.md. */
import { capturedFields, type TokenDataJson } from '../protocol/schema/row-details.ts'

/** Returns the token data of a row. */
export function pickTokenData(row: TokenDataJson): TokenDataJson {
  return Object.fromEntries(Object.entries(row).filter(([name]) => name in capturedFields))
}

/** Returns the `details` to request for the rows of a session with these capture names. */
export function toDetailNames(record: readonly string[]): string[] {
  const names = record.map((name) => name.replace(/:\d+$/, ''))
  return names.flatMap((name) => (name === 'sampling_mask' ? [name, 'sampling_logprobs'] : [name]))
}
