"""The pages: layouts made of Dash components, from what the analysis and the report hold."""
