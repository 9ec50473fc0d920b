/** What a test of a released engine needs, or the reason why it is skipped. */
import type { Test } from 'tap'
import { NotForThisMachine } from '../vllm/install.ts'

/** In the full gate, a machine that cannot run these tests has not passed. */
const IS_REQUIRED = process.env.ENGINES_REQUIRED === '1'

/** @returns undefined if the machine cannot install the engine: the test is skipped with the reason */
export async function installedFor<Installed>(
  t: Pick<Test, 'comment' | 'plan'>,
  install: (note: (text: string) => void) => Promise<Installed>,
): Promise<Installed | undefined> {
  try {
    return await install((text) => t.comment(text))
  } catch (error) {
    if (IS_REQUIRED || !(error instanceof NotForThisMachine)) throw error
    t.plan(0, `skipped: ${error.message}`)
    return undefined
  }
}
