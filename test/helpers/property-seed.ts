/** Loaded before every test file: with `PROPERTY_SEED` set, property tests use the same examples in each run. */
import { isMainThread } from 'node:worker_threads'

const seed = process.env.PROPERTY_SEED
if (seed && isMainThread) {
  const { default: fc } = await import('fast-check')
  fc.configureGlobal({ seed: Number(seed) })
}
