/** Installs a released engine for a test, or skips the test. */
import type { Test } from 'tap'
import { UnsupportedMachineError } from '../vllm/install.ts'

/** In the full gate, a machine that cannot run these tests fails. */
const IS_REQUIRED = process.env.ENGINES_REQUIRED === '1'

/** Returns undefined, and skips the test with the reason, if the machine cannot install the engine. */
export async function installOrSkip<Installed>(
  t: Pick<Test, 'comment' | 'plan'>,
  install: (note: (text: string) => void) => Promise<Installed>,
): Promise<Installed | undefined> {
  try {
    return await install((text) => t.comment(text))
  } catch (error) {
    if (IS_REQUIRED || !(error instanceof UnsupportedMachineError)) throw error
    t.plan(0, `skipped: ${error.message}`)
    return undefined
  }
}
