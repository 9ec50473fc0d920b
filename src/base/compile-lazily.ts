import type { TSchema } from 'typebox'
import { Compile, type Validator } from 'typebox/compile'

/**
 * Returns a getter of the schema's validator, compiled on first use: otherwise the start would compile a hundred of
 * them.
 */
export function compileLazily(schema: TSchema): () => Validator {
  let compiled: Validator | undefined
  return () => {
    compiled ??= Compile(schema)
    return compiled
  }
}
