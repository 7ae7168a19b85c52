from .questions_widget import Questions as Questions
