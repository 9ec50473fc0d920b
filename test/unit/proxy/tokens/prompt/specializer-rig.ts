/** Conversations, and a template service in this process, for tests of the prompt specializer. */
import type { ChatMessage } from '../../../../../src/protocol/canonical/messages.ts'
import { PromptEngine } from '../../../../../src/proxy/tokens/prompt/prompt-engine.ts'
import {
  PromptSpecializer,
  type TemplateService,
} from '../../../../../src/proxy/tokens/prompt/prompt-specializer.ts'
import { createTemplateSignature } from '../../../../../src/proxy/tokens/prompt/template-signature.ts'
import { createTemplate, toTemplateService } from '../../../../helpers/templates.ts'
import { loadModel, type Model } from '../prompt-rollout.ts'

export const SYSTEM: ChatMessage = { role: 'system', content: 'Be brief.' }
export const question = (content: string): ChatMessage => ({ role: 'user', content })
const CALL_ID = 'call00001'
export const HISTORY: ChatMessage[] = [
  SYSTEM,
  question('What?'),
  {
    role: 'assistant',
    content: null,
    tool_calls: [{ id: CALL_ID, type: 'function', function: { name: 'read', arguments: '{"path": "a"}' } }],
  },
]
export const result = (content: string): ChatMessage => ({ role: 'tool', tool_call_id: CALL_ID, content })
const models = new Map<string, Model>()

/** Returns a model that all tests share: loading one takes longer than most of them. */
export function sharedModel(name: string): Model {
  const model = models.get(name) ?? loadModel(name)
  models.set(name, model)
  return model
}

export function createThread(name: string, source?: string): TemplateService {
  const { template, tokenizer, end } = sharedModel(name)
  return toTemplateService(
    new PromptEngine(source === undefined ? template : createTemplate(source), {
      ids: tokenizer.addedTokens,
      eosIds: new Set([end.id]),
    }),
  )
}

/** Creates a specializer for a model's template, with counts of the jobs that a thread would run. */
export function setUp(name: string, overrides: Partial<TemplateService> = {}) {
  const thread = createThread(name)
  return { thread, ...countJobs({ ...thread, ...overrides }) }
}

export function countJobs(thread: TemplateService) {
  const jobs = { render: 0, newPart: 0, learned: 0 }
  const prompts = new PromptSpecializer({
    ...thread,
    render: (...input) => {
      jobs.render += 1
      return thread.render(...input)
    },
    renderNewPart: (...input) => {
      jobs.newPart += 1
      return thread.renderNewPart(...input)
    },
    specializePart: async (...input) => {
      const found = await thread.specializePart(...input)
      if (found !== undefined) jobs.learned += 1
      return found
    },
  })
  const faults: string[] = []
  prompts.onFault(() => faults.push('fault'))
  return { prompts, jobs, faults }
}

/** Renders the new part as the renderer does: first without the history. */
export async function renderPart(
  prompts: Pick<TemplateService, 'renderNewPart'>,
  history: readonly ChatMessage[],
  message: ChatMessage,
) {
  const newMessages = [message]
  const request = { situation: createTemplateSignature(history, newMessages, false), newMessages }
  const short = await prompts.renderNewPart(request, {})
  return short === 'needs_history'
    ? prompts.renderNewPart({ ...request, history: history.slice(0, -1) }, {})
    : short
}

export function renderResultPart(
  prompts: Pick<TemplateService, 'renderNewPart'>,
  content: string,
  history = HISTORY,
  fields: object = {},
) {
  return renderPart(prompts, history, { ...result(content), ...fields })
}

export const CHATML = (head: string, body: string) =>
  `${head}{% for m in messages %}<|im_start|>{{ m.role }}\n${body}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}`
export const CONTENT = "{{ m.content or '' }}"
