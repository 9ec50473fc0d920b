/** The functions that are equal in all OpenAI dialects. */
import type { ProxyError } from '../../../base/errors.ts'
import { buildOpenAiError } from '../../dialects/common/openai-error.ts'

export const OPENAI = {
  formatStreamError: (error: ProxyError) => `data: ${JSON.stringify(buildOpenAiError(error))}\n\n`,
  buildErrorBody: buildOpenAiError,
  // A comment, which the SDKs ignore, but which resets their idle timers.
  keepAlive: () => ': keep-alive\n\n',
  getHeaders: (turnId: string) => ({ 'x-request-id': turnId }),
}
