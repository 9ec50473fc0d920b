import type { Test } from 'tap'
import { Validator } from 'typebox/compile'

/** Returns a list to which the JSON length of each value is added whose schema errors the library enumerates. */
export function recordEnumeratedLengths(t: Pick<Test, 'teardown'>): number[] {
  const enumerate = Validator.prototype.Errors
  const lengths: number[] = []
  Validator.prototype.Errors = function (value) {
    lengths.push(JSON.stringify(value).length)
    return enumerate.call(this, value)
  }
  t.teardown(() => {
    Validator.prototype.Errors = enumerate
  })
  return lengths
}
