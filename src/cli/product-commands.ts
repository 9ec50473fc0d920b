/** The commands of products. A program with fewer products is built without them. */
import { DATASET_HARBOR } from '../proxy/config/options/dataset.ts'
import { DEMO } from '../proxy/config/options/demo.ts'
import { ENGINE } from '../proxy/config/options/engine.ts'
import { SESSIONS_EXPORT } from '../proxy/config/options/sessions.ts'
import { VIEW } from '../proxy/config/options/view.ts'
import { ROLLOUT } from '../rollout/options.ts'
import type { CommandRegistry } from './program.ts'

export function addProductCommands({ add, addHidden }: CommandRegistry): void {
  add(SESSIONS_EXPORT, () => import('./export/run.ts'), '[session-id...]')
  add(VIEW, () => import('./view/run.ts'))
  add(ROLLOUT, () => import('./rollout/run.ts'))
  add(ENGINE, () => import('./engine.ts'))
  add(DATASET_HARBOR, () => import('./dataset/harbor.ts'))
  add(DEMO, () => import('./demo/run.ts'))
  // The demo runs this command as its agent, because the standalone executable contains no other program.
  addHidden(
    'demo-agent [question]',
    'Answer a question (or TASK_PROMPT) with a calculator; OPENAI_BASE_URL names the model',
    () => import('./demo/agent.ts'),
  )
}
