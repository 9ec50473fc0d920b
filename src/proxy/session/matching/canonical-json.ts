import { getRawNumber } from '../../../protocol/canonical/number-texts.ts'

/**
 * Serializes a JSON value to text that is identical for equal values: without spaces, with sorted keys, and with raw
 * numbers as they were written. Members that JSON cannot represent are omitted, as JSON.stringify does.
 * @throws RangeError when the value is nested too deeply
 */
export function toCanonicalJson(value: unknown): string {
  if (typeof value !== 'object' || value === null) return JSON.stringify(value) ?? 'null'
  const number = getRawNumber(value)
  if (number !== undefined) return number
  if (Array.isArray(value)) return `[${value.map((item) => toCanonicalJson(item)).join(',')}]`
  const members = Object.entries(value).filter(([, member]) => member !== undefined)
  members.sort(([left], [right]) => (left < right ? -1 : 1))
  return `{${members.map(([name, member]) => `${JSON.stringify(name)}:${toCanonicalJson(member)}`).join(',')}}`
}
