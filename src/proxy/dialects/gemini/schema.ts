/** Schemas of Gemini's generateContent requests: https://ai.google.dev/api/generate-content */
import Type, { type Static } from 'typebox'
import { LargeInteger, toNullable } from '../common/check.ts'

const Json = Type.Record(Type.String(), Type.Unknown())

export const Content = Type.Object({
  role: toNullable(Type.Enum(['user', 'model', 'function', 'tool', 'system'])),
  /** The members of a part identify its kind: `parts.ts` handles those that a prompt can contain. */
  parts: toNullable(Type.Union([Type.Array(Json), Json])),
})
export type Content = Static<typeof Content>

const Schema = toNullable(Json)

const FunctionDeclaration = Type.Object({
  name: Type.String({ minLength: 1 }),
  description: toNullable(Type.String()),
  parameters: Schema,
  parametersJsonSchema: Schema,
})
export type FunctionDeclaration = Static<typeof FunctionDeclaration>

const Tool = Type.Object({ functionDeclarations: toNullable(Type.Array(FunctionDeclaration)) })

const FunctionCallingConfig = Type.Object({
  mode: toNullable(Type.String()),
  allowedFunctionNames: toNullable(Type.Array(Type.String())),
})
export type FunctionCallingConfig = Static<typeof FunctionCallingConfig>

const GenerationConfig = Type.Object({
  candidateCount: toNullable(Type.Integer({ minimum: 1 })),
  stopSequences: toNullable(Type.Array(Type.String({ minLength: 1 }))),
  maxOutputTokens: toNullable(Type.Integer({ minimum: 1 })),
  temperature: toNullable(Type.Number({ minimum: 0 })),
  topP: toNullable(Type.Number({ minimum: 0, maximum: 1 })),
  topK: toNullable(Type.Number({ minimum: 0 })),
  seed: toNullable(LargeInteger),
  presencePenalty: toNullable(Type.Number()),
  frequencyPenalty: toNullable(Type.Number()),
  responseMimeType: toNullable(Type.String()),
  responseSchema: Schema,
  responseJsonSchema: toNullable(Type.Unknown()),
  responseLogprobs: toNullable(Type.Boolean()),
  responseModalities: toNullable(Type.Array(Type.String())),
  thinkingConfig: toNullable(
    Type.Object({
      includeThoughts: toNullable(Type.Boolean()),
      thinkingBudget: toNullable(Type.Integer()),
      thinkingLevel: toNullable(Type.String()),
    }),
  ),
})
export type GenerationConfig = Static<typeof GenerationConfig>

export const GeminiRequest = Type.Object(
  {
    contents: Type.Array(Content, { minItems: 1 }),
    systemInstruction: toNullable(Content),
    tools: toNullable(Type.Array(Tool)),
    toolConfig: toNullable(Type.Object({ functionCallingConfig: toNullable(FunctionCallingConfig) })),
    generationConfig: toNullable(GenerationConfig),
  },
  {
    $id: 'GeminiRequest',
    description:
      "Gemini's generateContent; names in snake_case are accepted, too; unknown fields are forwarded.",
  },
)
export type GeminiRequest = Static<typeof GeminiRequest>
