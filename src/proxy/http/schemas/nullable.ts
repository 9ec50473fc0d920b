import Type, { type TSchema } from 'typebox'

/** What may be null in an answer. */
export const nullable = <T extends TSchema>(schema: T) => Type.Union([schema, Type.Null()])
