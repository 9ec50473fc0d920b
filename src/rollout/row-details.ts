/** The token data of rows in the proxy's JSON: docs/details.md. */
import { capturedFields, type TokenDataJson } from '../protocol/schema/row-details.ts'

/** Returns the fields of a row that are token data. */
export function pickTokenData(row: TokenDataJson): TokenDataJson {
  return Object.fromEntries(Object.entries(row).filter(([name]) => name in capturedFields))
}

/** Returns the values of the query parameter `details` that request the token data with these capture names. */
export function toDetailNames(record: readonly string[]): string[] {
  const names = record.map((name) => name.replace(/:\d+$/, ''))
  return names.flatMap((name) => (name === 'sampling_mask' ? [name, 'sampling_logprobs'] : [name]))
}
