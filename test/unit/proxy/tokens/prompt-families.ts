/**
 * Properties of the chat template of each family of models: `npm test` covers some, `npm run test:slow` the
 * others.
 */
import fc from 'fast-check'
import type { Test } from 'tap'
import type { ChatMessage } from '../../../../src/protocol/canonical/messages.ts'
import type { TemplateRejectionReason } from '../../../../src/proxy/tokens/prompt/template-rejection.ts'
import { limitRuns } from '../../../helpers/tier.ts'
import {
  CHAT_CONVERSATION,
  type Conversation,
  conversations,
  TOOL_CONVERSATION,
} from './prompt-conversations.ts'
import { loadModel, Rollout } from './prompt-rollout.ts'

interface Family {
  /** Conversations whose earlier messages the template never renders differently later. */
  stable: Record<string, Conversation>
  /**
   * The reasons why the template rejects a system message, or an unsampled assistant message, after a
   * completion.
   */
  rejections?: { system?: TemplateRejectionReason; other?: TemplateRejectionReason }
}

export const FAMILIES: Record<string, Family> = {
  qwen2_5: { stable: { TOOL_CONVERSATION, CHAT_CONVERSATION } },
  // Drops reasoning, and its empty frame, with the next user message.
  qwen3: { stable: { TOOL_CONVERSATION } },
  llama3_1: { stable: { TOOL_CONVERSATION, CHAT_CONVERSATION } },
  llama3_2: { stable: { TOOL_CONVERSATION, CHAT_CONVERSATION } },
  // Writes no end of turn after a single tool call, and moves system messages to the beginning.
  deepseek_v3: { stable: { CHAT_CONVERSATION }, rejections: { system: 'past_changes' } },
  // Accepts only alternating user and assistant messages.
  gemma3: {
    stable: { CHAT_CONVERSATION },
    rejections: { system: 'template_refuses', other: 'template_refuses' },
  },
  embedded: { stable: { TOOL_CONVERSATION, CHAT_CONVERSATION } },
}

const user: ChatMessage = { role: 'user', content: 'Well?' }
const assistantMessage: ChatMessage = { role: 'assistant', content: 'Well.' }
const NEW_MESSAGES: Record<'system' | 'other', ChatMessage[]> = {
  system: [{ role: 'system', content: 'Be brief.' }, user],
  other: [assistantMessage, user],
}

export function testPrompts(t: Test, name: string): void {
  const family = FAMILIES[name]!
  t.test(name, async (t) => {
    const model = loadModel(name)
    for (const [kind, newMessages] of Object.entries(NEW_MESSAGES)) {
      const request = { history: [user, assistantMessage], newMessages, lastCompletionId: model.end.id }
      const continuation = await model.renderer.renderContinuation(request)
      const rejection = family.rejections?.[kind as keyof typeof NEW_MESSAGES]
      t.match(continuation, rejection ? { refused: rejection } : { text: /Well\?/ }, `new messages: ${kind}`)
    }
    await t.test(
      'each prompt is the previous one, its completion, and the end of the full render',
      async () => {
        await fc.assert(
          fc.asyncProperty(conversations(name !== 'gemma3'), async (conversation) => {
            await new Rollout(model, conversation).play(conversation.steps)
          }),
          { numRuns: limitRuns(40) },
        )
      },
    )
    for (const [title, conversation] of Object.entries(family.stable)) {
      const { equalPrompts } = await new Rollout(model, conversation).play(conversation.steps)
      t.equal(
        equalPrompts,
        conversation.steps.length,
        `${title}: prompts are completely equal to full renders`,
      )
    }
  })
}
